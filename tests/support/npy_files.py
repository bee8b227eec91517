"""Headers of .npy files, also wrong headers."""


def header(shape, dtype="'<f4'", length=None):
    """Return the header of an .npy file, bytes, with these texts as its shape and type, and the length that it announces."""
    text = f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}".encode('latin-1')
    return b'\x93NUMPY\x01\x00' + (len(text) if length is None else length).to_bytes(2, 'little') + text
