"""Where in an image what we install lies: modules, shared data and scripts."""

from dataclasses import dataclass

PREFIX = "usr/local"


DATA = ("bin", "etc", "man", "share")  # of uv's target folder, but of the prefix in the image


@dataclass(frozen=True)
class Place:
    """Where an image has what we install: modules, shared data, scripts (below the root); and their interpreter."""

    site: str
    prefix: str
    scripts: str
    interpreter: str

    def of(self, path: str) -> str:
        """The path in the image of what uv put at `path` in its target folder."""
        top, _, below = path.partition("/")
        if top == "bin":
            return f"{self.scripts}/{below}"
        return f"{self.prefix}/{path}" if top in DATA else f"{self.site}/{path}"

    @property
    def shebang(self) -> bytes:
        """The first line of a script that this interpreter runs."""
        return f"#!{self.interpreter}\n".encode()


def debian(python: str) -> Place:
    """The place in an image made from Debian packages."""
    return Place(f"{PREFIX}/lib/python{python}/dist-packages", PREFIX, f"{PREFIX}/bin", "/usr/bin/python3")
