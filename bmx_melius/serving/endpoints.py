"""The URLs of the service: what each of them does, and how errors are answered."""

import asyncio
import concurrent.futures
import contextlib
import time

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from .._version import __version__
from ..errors import UserError
from ..process import usable_cores
from . import tensors
from .batcher import Batcher
from .bodies import read_body
from .hosts import name_of
from .interruptions import Interruptions
from .limits import Admission, Refusal
from .metrics import CONTENT_TYPE, ServiceMetrics
from .page import CONTENT_SECURITY_POLICY, PAGE
from .readers import Readers

_DEFAULT_TOP, _MAX_TOP = 5, 1000
_CLIENT_CLOSED_REQUEST = 499  # only in metrics: nobody receives it
_MODEL = 'bmx_melius.model'  # in the scope of a request: the name of its network
_HELD = 'bmx_melius.held'  # in the scope of a request: what is released after its answer has been sent
_FORM = 'multipart/form-data'
_SMALL_JSON = 1 << 16  # bytes that are parsed at once; others wait for a process
_PIECE = 1 << 16  # bytes of an answer that are sent at a time
_UNKNOWN = ''  # model and endpoint in metrics of a request that names none of the service
_MISDIRECTED = JSONResponse({'error': 'the service is not known by this name: see --allow-host of bmx-melius serve'}, 421)


class Service:
    """The service: networks, the batcher that runs them, and an ASGI application.

    Parameters
    ----------
    networks : dict of str to ServedNetwork
    limits : Limits
    workers : int
        Batches that are computed at the same time.
    hosts : set of str or None
        Names under which the service may be addressed, see `hosts.allowed_hosts`; None: any.

    Attributes
    ----------
    stopping : bool
        Whether the service refuses further requests because it ends.
    """

    def __init__(self, networks, limits, workers=1, hosts=None):
        self._networks, self._limits, self._hosts, self.stopping = networks, limits, hosts, False
        self._admissions = {name: Admission(limits.queue) for name in networks}
        self._interruptions = Interruptions()
        self._batcher = Batcher(limits.max_batch, limits.max_delay, workers, lambda *run: self._metrics.observe_run(*run))
        self._metrics = ServiceMetrics(self._admissions, self._batcher.images_waiting)
        self._readers = Readers(limits)
        self._threads = concurrent.futures.ThreadPoolExecutor(usable_cores(), 'bmx-melius-answer')
        self._routes = Starlette(
            routes=[
                Route('/', self._page),
                Route('/healthz', self._live),
                Route('/readyz', self._ready),
                Route('/metrics', self._show_metrics),
                Route('/v1/classify', self._classify, methods=['POST']),
                Route('/v2', self._server),
                Route('/v2/health/live', self._live),
                Route('/v2/health/ready', self._ready),
                Route('/v2/models', self._models),
                Route('/v2/models/{model}', self._model),
                Route('/v2/models/{model}/ready', self._model_ready),
                Route('/v2/models/{model}/infer', self._infer, methods=['POST']),
            ],
            exception_handlers={
                Refusal: self._refuse,
                HTTPException: _not_found,
                ClientDisconnect: _disconnected,
                Exception: _failed,  # Starlette raises the exception again afterwards, so that it is logged
            },
        )

    async def __call__(self, scope, receive, send):
        """Answer a request (ASGI) and count it."""
        if scope['type'] != 'http':
            raise NotImplementedError(f'the service does not handle {scope["type"]}')
        status, begin = 500, time.perf_counter()

        async def send_counted(message):
            nonlocal status
            if message['type'] == 'http.response.start':
                status = message['status']
            body = message.get('body', b'')
            for begin in range(0, len(body) - _PIECE, _PIECE):  # the next one when the client has received most of those before
                await send({**message, 'body': body[begin : begin + _PIECE], 'more_body': True})
            await send({**message, 'body': body[-(len(body) % _PIECE or _PIECE) :]} if body else message)

        try:
            with contextlib.ExitStack() as scope[_HELD]:
                await (self._routes if self._is_allowed(scope) else _MISDIRECTED)(scope, receive, send_counted)
        finally:
            endpoint = getattr(scope.get('endpoint'), '__name__', _UNKNOWN).strip('_')
            self._metrics.observe_request(endpoint, scope.get(_MODEL, _UNKNOWN), status, time.perf_counter() - begin)

    def stop(self):
        """Refuse all further requests for inference. Those in progress are finished."""
        self.stopping = True
        for admission in self._admissions.values():
            admission.close()

    def abandon(self):
        """Answer all requests in progress with status 503, because there is no more time."""
        self._interruptions.interrupt_all(lambda: Refusal(503, 'the service has stopped before it could answer this request', 'stopping'))

    def in_progress(self):
        """Return the number of requests that have been accepted and not yet been answered."""
        return sum(admission.in_progress for admission in self._admissions.values())

    def close(self):
        """End the threads. No request may be in progress."""
        self._threads.shutdown()
        self._batcher.close()

    async def end_readers(self):
        """End the processes that read requests. None may be in progress."""
        await self._readers.close()

    def _is_allowed(self, scope):
        names = [name_of(value.decode('latin-1')) for key, value in scope['headers'] if key == b'host']
        return self._hosts is None or self._hosts.issuperset(names)

    # --- inference ----------------------------------------------------------------------------------------------------------------------

    async def _classify(self, request):
        network = self._chosen(request, request.query_params.get('model'))
        top = _parse_top(request.query_params.get('top'))
        with self._admitted(request, network):
            if network.not_a_classifier:
                raise Refusal(422, f'{network.name} cannot classify images: {network.not_a_classifier}')
            content = await read_body(request, self._limits)
            kind = request.headers.get('Content-Type', '')
            async with self._interruptions.while_connected(request.receive):
                image = await self._readers.image(network.input_spec, kind if kind.lower().startswith(_FORM) else None, content)
                del content  # of megabytes, not while the image waits
                outputs = await self._batcher.run(network, [image])
            return JSONResponse({'model': network.name, 'top': network.describe(outputs, top)})

    async def _infer(self, request):
        network = self._chosen(request, request.path_params['model'])
        with self._admitted(request, network):
            body = await read_body(request, self._limits)
            length = request.headers.get(tensors.LENGTH_HEADER)
            async with self._interruptions.while_connected(request.receive):
                names = network.input_names, network.output_names
                if tensors.json_bytes(body, length) <= _SMALL_JSON:
                    parsed = await self._in_thread(tensors.parse_request, body, length, *names)
                else:
                    parsed = await self._readers.arrays(body, length, *names)
                del body
                self._check_arrays(network, parsed.arrays)
                try:
                    outputs = await self._batcher.run(network, parsed.arrays)
                except UserError as error:  # such as too little memory for images of this size
                    raise Refusal(400, str(error)) from error
                content, length = await self._in_thread(tensors.write_response, network.name, parsed, network.output_names, outputs)
            if length is None:
                return Response(content, media_type='application/json')
            return Response(content, media_type='application/octet-stream', headers={tensors.LENGTH_HEADER: str(length)})

    @contextlib.contextmanager
    def _admitted(self, request, network):
        """Count a request as in progress until its answer has been sent; within the block `abandon` ends it."""
        request.scope[_HELD].enter_context(self._admissions[network.name].admitted())
        with self._interruptions.interruptible():
            yield

    def _check_arrays(self, network, arrays):
        """Raise `Refusal` unless the network and the service accept these inputs."""
        try:
            network.check_shapes([array.shape for array in arrays])
        except UserError as error:
            raise Refusal(400, str(error)) from error
        images = len(arrays[0])
        if images > self._limits.max_batch:
            raise Refusal(400, f'a batch of {images} is more than the {self._limits.max_batch} that this service accepts: send several')

    def _chosen(self, request, name):
        """Return the network with a name, or the only one if the name is None."""
        if name is None:
            if len(self._networks) > 1:
                raise Refusal(400, f'there are several networks: choose one with ?model=NAME, of {", ".join(self._networks)}')
            (name,) = self._networks
        if name not in self._networks:
            raise Refusal(404, f'there is no network {name[:100]!r}, only {", ".join(self._networks)}', 'unknown')
        request.scope[_MODEL] = name
        return self._networks[name]

    async def _refuse(self, request, refusal):
        self._metrics.observe_refusal(request.scope.get(_MODEL, _UNKNOWN), refusal.reason)
        return JSONResponse({'error': str(refusal)}, refusal.status, refusal.headers)

    async def _in_thread(self, function, *arguments):
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    # --- descriptions -------------------------------------------------------------------------------------------------------------------

    async def _page(self, request):
        headers = {'Content-Security-Policy': CONTENT_SECURITY_POLICY, 'X-Content-Type-Options': 'nosniff', 'Cache-Control': 'no-cache'}
        return HTMLResponse(PAGE, headers=headers)

    async def _show_metrics(self, request):
        return Response(self._metrics.text(), headers={'Content-Type': CONTENT_TYPE})

    async def _live(self, request):
        return JSONResponse({'live': True})

    async def _ready(self, request):
        return JSONResponse({'ready': not self.stopping}, 503 if self.stopping else 200)

    async def _server(self, request):
        return JSONResponse({'name': 'bmx-melius', 'version': __version__, 'extensions': list(tensors.EXTENSIONS)})

    async def _models(self, request):
        rows = [{'name': name, 'classifies_images': not network.not_a_classifier} for name, network in self._networks.items()]
        return JSONResponse({'models': rows})

    async def _model(self, request):
        return JSONResponse(tensors.metadata(self._chosen(request, request.path_params['model'])))

    async def _model_ready(self, request):
        network = self._chosen(request, request.path_params['model'])
        return JSONResponse({'name': network.name, 'ready': not self.stopping}, 503 if self.stopping else 200)


def _parse_top(text):
    """Return the number of classes that a client asks for."""
    if text is None:
        return _DEFAULT_TOP
    if not (text.isascii() and text.isdigit() and len(text) < 5 and 1 <= int(text) <= _MAX_TOP):
        raise Refusal(400, f'top must be a whole number from 1 to {_MAX_TOP}, not {text[:20]!r}')
    return int(text)


async def _not_found(request, error):
    message = {404: f'there is nothing at {request.url.path[:100]!r}', 405: f'{request.method} is not supported here'}
    return JSONResponse({'error': message.get(error.status_code, error.detail)}, error.status_code, error.headers)


async def _disconnected(request, error):
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _failed(request, error):
    return JSONResponse({'error': 'the service failed to answer this request; its log has the reason'}, 500)
