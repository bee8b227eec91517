"""Names under which the service may be addressed.

A page of any site can let its own name point to this machine (DNS rebinding), and then send requests to a service that only listens on
this machine, and read the answers. The header ``Host`` of such requests has the name of that site.
"""

import ipaddress

_LOCAL = ('localhost', '127.0.0.1', '::1')


def allowed_hosts(address, names=()):
    """Return the names that requests may have in ``Host``, a set, or None if all are allowed.

    Parameters
    ----------
    address : str
        What the service listens on. If it is this machine only, its names are allowed, and otherwise all.
    names : sequence of str
        Further names; if the service listens on other addresses, only these are allowed.
    """
    names = {name_of(name) for name in names}
    if _is_local(address):
        return names.union(_LOCAL, [name_of(address)])
    return names or None


def name_of(host):
    """Return the name in a header ``Host``, in lower case and without port."""
    host = host.strip().lower()
    if host.startswith('['):
        return host[1:].partition(']')[0]
    return host if host.count(':') > 1 else host.partition(':')[0].rstrip('.')


def _is_local(address):
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return name_of(address) == 'localhost'
