"""Export of packed programs as C99 for microcontrollers: kernels in C, and modules that write a program as calls of these.

``kernels/*.c`` are the kernels, from which ``kernel_sources`` copies what a network uses. ``values`` describes where values lie,
``facts`` derives properties of a program, ``element_calls``, ``int8_calls`` and ``layer_calls`` write it as ``calls``, ``rescaling``
chooses the arithmetic of 8-bit layers, ``arena`` assigns memory, ``code_size`` estimates the code, ``c_text`` writes constants and calls,
and ``c_files`` the files.
"""
