"""Files of other libraries: what they hold, and reading it into networks of this one.

``bmxnet_v2``            checkpoints of BMXNet-v2, the fork of MXNet in which the paper's networks were trained
``bmxnet_v2_converted``  pairs that its model_converter packed, whose operators and bits ``bmxnet_v2_format`` describes
``keras``                weights of Keras networks, such as Larq's, which `model_zoo.larq` gives to networks
"""
