"""The folders of an image that Python packages are installed to."""

from dataclasses import dataclass

PREFIX = "usr/local"
DATA_FOLDERS = ("bin", "etc", "man", "share")
"""The folders that uv makes in its target folder and that belong below the prefix in the image."""


@dataclass(frozen=True)
class Place:
    """The folders of one image, below the root."""

    site: str
    """The folder of modules."""
    prefix: str
    """The folder above shared data."""
    scripts: str
    """The folder of scripts."""
    interpreter: str
    """The absolute path of the interpreter that runs the scripts."""

    def of(self, path: str) -> str:
        """Returns the path in the image of a file at `path` in uv's target folder."""
        top, _, below = path.partition("/")
        if top == "bin":
            return f"{self.scripts}/{below}"
        return f"{self.prefix}/{path}" if top in DATA_FOLDERS else f"{self.site}/{path}"

    @property
    def shebang(self) -> bytes:
        """The first line of a script for this interpreter."""
        return f"#!{self.interpreter}\n".encode()


def debian_place(python: str) -> Place:
    """Returns the folders of an image made from Debian packages; `python` is a version, as in 3.13."""
    return Place(f"{PREFIX}/lib/python{python}/dist-packages", PREFIX, f"{PREFIX}/bin", "/usr/bin/python3")
