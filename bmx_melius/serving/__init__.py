"""Inference service for packed networks over HTTP: the command ``bmx-melius serve``. Requires the packages of ``bmx-melius[serve]``.

``network``          a packed network in the service: its `Session`, what clients can ask about it, images and scores
``limits``           limits of sizes and of the number of requests, and refusals with their HTTP status
``batch_queue``      which waiting requests form the next batch; ``batcher`` runs the batches in threads
``interruptions``    requests that end before their answer: clients that disconnect, and the end of the service
``hosts``            names under which the service may be addressed
``bodies``           bodies of requests, read within the limits
``tensors``          requests and responses of the Open Inference Protocol (KServe V2), as JSON or binary
``uploads``          uploaded images, in forms or not, and checks before they are decoded
``reading``          program of a process that decodes images and parses arrays; ``readers`` starts, asks and ends these processes
``turns``            which request is read next
``metrics``          counters and histograms for Prometheus
``endpoints``        what each URL does; ``page`` is the page for browsers
``server``           the HTTP server, and its graceful shutdown

``batch_queue``, ``batcher``, ``hosts``, ``limits``, ``network``, ``tensors`` and ``turns`` need no package of the extra. Nothing
imports MXNet.
"""
