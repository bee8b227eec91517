"""Importers of networks trained with other libraries.

``bmxnet_v2``            checkpoints of BMXNet-v2, the fork of MXNet in which the networks of the paper were trained
``bmxnet_v2_converted``  networks packed by the model_converter of BMXNet-v2; ``bmxnet_v2_format`` reads its operators and bits
``keras``                weights of Keras networks, such as Larq's, which `model_zoo.larq` loads into networks
"""
