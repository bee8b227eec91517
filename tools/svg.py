"""SVG images, written element by element with the standard library, so that they are the same on every machine."""

from xml.sax.saxutils import escape

INK, SOFT, PAPER, RULE = '#1f2933', '#5b6773', '#fbfbfd', '#c9d1da'
BLUE, LIGHT_BLUE, GREEN, LIGHT_GREEN, ORANGE, LIGHT_ORANGE, GRAY = (
    '#2f5fb3', '#dbe7fb', '#2b7a4b', '#d9f0e2', '#b4581a', '#fbe6d6', '#e8ebef',
)  # fmt: skip


class Drawing:
    """An SVG image with a light background, built element by element; positions in pixels."""

    def __init__(self, width, height, title):
        self.width, self.height, self.title, self.parts = width, height, title, []

    def box(self, x, y, width, height, fill=GRAY, stroke=INK, text='', size=12):
        """Draw a rectangle with a text in its middle."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" fill="{fill}" stroke="{stroke}" stroke-width="1"/>'
        )
        if text:
            self.text(x + width / 2, y + height / 2 + size * 0.36, text, size, anchor='middle')

    def text(self, x, y, text, size=12, anchor='start', color=INK, weight='normal', mono=False):
        """Write a line of text; `y` is its baseline."""
        family = ' font-family="monospace"' if mono else ''
        bold = f' font-weight="{weight}"' if weight != 'normal' else ''
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" fill="{color}"{bold}{family}>{escape(text)}</text>'
        )

    def line(self, x1, y1, x2, y2, color=SOFT, width=1.2, arrow=False, dashed=False):
        """Draw a line or an arrow."""
        end = ' marker-end="url(#arrow)"' if arrow else ''
        dash = ' stroke-dasharray="4 3"' if dashed else ''
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" stroke-width="{width:g}"{end}{dash}/>')

    def dot(self, x, y, color, radius=4.5):
        """Draw a filled circle."""
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{color}" fill-opacity="0.9"/>')

    def __str__(self):
        return '\n'.join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}" '
                f'viewBox="0 0 {self.width} {self.height}" font-family="Helvetica, Arial, DejaVu Sans, sans-serif" role="img">',
                f'<title>{escape(self.title)}</title>',
                '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
                f'<path d="M0 0 L8 4 L0 8 z" fill="{SOFT}"/></marker></defs>',
                f'<rect width="{self.width}" height="{self.height}" rx="6" fill="{PAPER}"/>',
                *self.parts,
                '</svg>\n',
            ]
        )
