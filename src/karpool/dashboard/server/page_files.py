"""The files of the page, read once from the package: no other file can be requested."""

from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from importlib import resources

from karpool.dashboard.api.response_cache import CachedBody

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    body: CachedBody
    content_type: str


@cache
def page_files() -> dict[str, PageFile]:
    """Return the files by path: `/`, `/page/NAME`, and `/page/vendor/NAME` for third-party files."""
    files: dict[str, PageFile] = {}
    page = resources.files("karpool.dashboard").joinpath("page")
    for folder, prefix in ((page, "/page/"), (page.joinpath("vendor"), "/page/vendor/")):
        for entry in folder.iterdir():
            suffix = "." + entry.name.rpartition(".")[2]
            if suffix in _TYPES:
                content = entry.read_bytes()
                tag = f'"{blake2b(content, digest_size=12).hexdigest()}"'
                path = "/" if entry.name == "index.html" else f"{prefix}{entry.name}"
                files[path] = PageFile(CachedBody(content, tag), _TYPES[suffix])
    return files
