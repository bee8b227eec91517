"""Names of other libraries for their users. No other module of this package imports these; import the one that is needed."""

from ..process import require_mxnet

require_mxnet(__name__)
