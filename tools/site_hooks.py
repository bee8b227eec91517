"""Hooks of MkDocs for the documentation site (mkdocs.yml): pages that are not files of docs/, links between them, and help texts.

Pages are made from the README and other Markdown files of the repository and from the notebooks in examples/, so that nothing is written
twice. Links of a page refer to files of the repository, as on its web page; here they become links to pages, or text where the site has
no page of a file. A line ``<!-- help: COMMAND -->`` becomes the output of ``COMMAND --help``.
"""

import base64
import html
import json
import os
import pathlib
import posixpath
import re
import shlex
import subprocess
import sys

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = 'docs'
PAGES = {  # file of the repository -> page; files of docs/ keep their names
    'README.md': 'index.md',
    'CONTRIBUTING.md': 'contributing.md',
    'CHANGELOG.md': 'changelog.md',
    'SECURITY.md': 'security.md',
    'benchmarks/README.md': 'benchmark-results.md',
}
# Pages at the root of the site that moved to internals/: their old addresses lead to the new pages.
MOVED = {'deploy': 'conversion', **{name: name for name in ('engine', 'kernels', 'packed-format', 'fuzzing', 'releasing')}}
NOTEBOOKS = {f'examples/{name}.ipynb': f'notebooks/{name}.md' for name in ('digits', 'larq', 'pytorch')}
_LINK = re.compile(r'(!?)\[((?:[^][]|\[[^][]*\])*)\]\(([^()\s]+)\)')
_FENCE = re.compile(r'^(```|~~~).*?^\1$', re.MULTILINE | re.DOTALL)
_HELP = re.compile(r'^<!-- help: (.+) -->$', re.MULTILINE)
# Pages with many words, which a search should find after those that explain: beginning of the name -> weight; others have 2.
SEARCH_WEIGHTS = {'api/': 0.5, 'changelog': 0.1, 'command-line': 1, 'contributing': 0.5, 'internals/': 1, 'security': 0.5, 'index': 1}
WORKER = 'https://unpkg.com/iframe-worker/shim'  # which the theme's plugin `offline` loads


# --- pages ----------------------------------------------------------------------------------------------------------------------------


def on_files(files, config):
    """Add the pages made from files outside docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding='utf-8')))
    for source, page in NOTEBOOKS.items():
        text, pictures = notebook_page(json.loads((ROOT / source).read_text(encoding='utf-8')), pathlib.Path(page).stem)
        files.append(File.generated(config, page, content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f'notebooks/{name}', content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    """Replace the links and the help texts of a page, and set its weight in the search."""
    page.meta.setdefault(
        'search', {'boost': next((weight for start, weight in SEARCH_WEIGHTS.items() if page.file.src_uri.startswith(start)), 2)}
    )
    source = source_of(page.file.src_uri)
    markdown = outside_of_code(markdown, lambda text: relinked(text, source, page.file.src_uri))
    return _HELP.sub(lambda match: help_of(match[1]), markdown)


def on_post_page(output, page, config):
    """Load the worker for pages that are opened from the file system from the site instead of another host."""
    return output.replace(WORKER, posixpath.relpath('file-worker.js', posixpath.dirname(page.file.dest_uri) or '.'))


def on_post_template(output, template_name, config):
    """Do the same for pages that are not made from Markdown: the page that reports a missing one."""
    return output.replace(WORKER, '/file-worker.js')


def on_post_build(config):
    """Write a page at each address that a page had before it moved."""
    site = pathlib.Path(config.site_dir)
    for old, new in MOVED.items():
        target = f'internals/{new}.html'
        if not (site / target).exists():
            raise PluginError(f'{old}.html would lead to {target}, which is not a page')
        link = f'<meta http-equiv="refresh" content="0; url={target}"><a href="{target}">{target}</a>'
        (site / f'{old}.html').write_text(f'<!doctype html><meta charset="utf-8"><title>Moved</title>{link}\n', encoding='utf-8')


def source_of(page):
    """Return the path in the repository of the file from which a page is made."""
    made = {target: source for source, target in {**PAGES, **NOTEBOOKS}.items()}
    return made.get(page, f'{DOCS}/{page}')


def page_of(source):
    """Return the page, or the file of the site, made from a file of the repository, or None."""
    made = {**PAGES, **NOTEBOOKS}.get(source)
    return source[len(DOCS) + 1 :] if made is None and source.startswith(f'{DOCS}/') else made


# --- links ----------------------------------------------------------------------------------------------------------------------------


def outside_of_code(markdown, change):
    """Apply a function to the text between fenced blocks of code."""
    parts, position = [], 0
    for block in _FENCE.finditer(markdown):
        parts += [change(markdown[position : block.start()]), block[0]]
        position = block.end()
    return ''.join([*parts, change(markdown[position:])])


def relinked(text, source, page):
    """Return the text of a page with its links to files of the repository replaced by links to pages."""

    def replaced(match):
        picture, label, target = match.groups()
        path, hash_sign, anchor = target.partition('#')
        if not path or ':' in path:
            return match[0]
        name = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if name.startswith('notebooks/') or not (ROOT / name).exists():
            return match[0]  # a picture of a notebook; a wrong link is reported by MkDocs
        found = page_of(name)
        if found is None:
            return label if label.startswith('`') else f'{label} (`{name}`)'
        return f'{picture}[{label}]({posixpath.relpath(found, posixpath.dirname(page) or ".")}{hash_sign}{anchor})'

    return _LINK.sub(replaced, text)


# --- help texts -----------------------------------------------------------------------------------------------------------------------


def help_of(command):
    """Return the output of ``COMMAND --help`` as a block of code."""
    program, *arguments = shlex.split(command)
    start = {'bmx-melius': ['-m', 'bmx_melius']}.get(program, [program])
    environment = {**os.environ, 'COLUMNS': '100', 'PYTHONWARNINGS': 'ignore'}
    done = subprocess.run([sys.executable, *start, *arguments, '--help'], cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise PluginError(f'{command} --help failed: {(done.stderr.splitlines() or ["no message"])[-1]}')
    return f'```text\n{done.stdout.rstrip()}\n```'


# --- notebooks ------------------------------------------------------------------------------------------------------------------------


def notebook_page(notebook, name):
    """Return the Markdown of a notebook with its outputs, and its pictures: file name -> bytes."""
    parts, pictures = [], {}
    for cell in notebook['cells']:
        source = ''.join(cell['source'])
        parts.append(source if cell['cell_type'] == 'markdown' else f'```python\n{source}\n```')
        for output in cell.get('outputs', ()):
            data = output.get('data', {})
            if 'image/png' in data:
                picture = f'{name}-{len(pictures) + 1}.png'
                pictures[picture] = base64.b64decode(''.join(data['image/png']))
                parts.append(f'![Output of the cell above]({picture})')
            else:
                text = ''.join(output.get('text', data.get('text/plain', '')))
                parts.append(f'<pre class="output">{html.escape(text.rstrip())}</pre>')
    return '\n\n'.join(parts) + '\n', pictures
