"""The page for browsers, page.html, and the policy that forbids it everything but its own script and style and requests to this service."""

import base64
import hashlib
import pathlib
import re

PAGE = (pathlib.Path(__file__).parent / 'page.html').read_text(encoding='utf-8')


def _source_hash(tag):
    """Return the hash of the only element with a tag, in the form of a Content-Security-Policy."""
    (content,) = re.findall(f'<{tag}>(.*?)</{tag}>', PAGE, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


CONTENT_SECURITY_POLICY = '; '.join(
    [
        "default-src 'none'",
        f'script-src {_source_hash("script")}',
        f'style-src {_source_hash("style")}',
        "connect-src 'self'",
        'img-src blob: data:',
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
