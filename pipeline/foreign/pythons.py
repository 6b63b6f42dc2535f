"""Finds the Pythons of an image as its own shell and CPython would find them, from its files alone."""

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pipeline.config.launcher_contract import DEFAULT_PATH
from pipeline.core.errors import TandemError
from pipeline.foreign.facts import Interpreter
from pipeline.foreign.filesystem import FilesystemView, KeepRule

MAX_TEXT_BYTES = 256 << 10
PYTHON_NAME = re.compile(r"(?:python|pypy)(\d(?:\.\d+)?)?t?")
PY_VERSION = re.compile(rb"\x003\.(?:[5-9]|[12]\d)\.\d+(?:(?:a|b|rc)\d+)?\+?\x00")
"""PY_VERSION in a CPython. The version of SQLite that some have inside is out of this range."""
RULES: tuple[KeepRule, ...] = (
    (re.compile(r"/pyvenv\.cfg$"), MAX_TEXT_BYTES),
    (re.compile(r"/lib(64)?/python3\.\d+t?/site\.py$"), MAX_TEXT_BYTES),
    (re.compile(r"/include/python3\.\d+t?/patchlevel\.h$"), MAX_TEXT_BYTES),
    (re.compile(r"/bin/python3\.\d+t?$|/libpython3\.\d+t?\.so"), PY_VERSION),
    (re.compile(r"/site-packages/[^/]+\.pth$|/dist-packages/[^/]+\.pth$"), MAX_TEXT_BYTES),
)
# Scripts are a foreign image's: one \S and fixed spaces, for with runs of spaces the time would grow as their cube.
INNER_EXEC = re.compile(r"^'''exec' (\S.*) \"\$0\" \"\$@\"", re.MULTILINE)


@dataclass(frozen=True)
class ProcessContext:
    """An image as a process sees it that is started in it: its files, its environment and its working folder."""

    view: FilesystemView
    env: Mapping[str, str]
    workdir: str = "/"
    user: str = ""

    def which(self, name: str) -> str:
        """Returns the path of a command on PATH; empty if there is none."""
        for folder in (self.env.get("PATH") or DEFAULT_PATH).split(":"):
            path = posixpath.join(self.workdir or "/", folder, name)
            if self.view.is_program(path):
                return posixpath.normpath(path)
        return ""

    @property
    def home(self) -> str:
        """The home folder of the image's user."""
        user = self.user.partition(":")[0] or "root"
        lines = [line.split(":") for line in self.view.text("/etc/passwd").splitlines()]
        home = next((line[5] for line in lines if len(line) > 5 and user in (line[0], line[2])), "")
        return self.env.get("HOME") or home or ("/root" if user in ("root", "0") else "/")


def find_interpreter(context: ProcessContext, program: str) -> str:
    """Returns the Python that a program runs under, by one path for all its names in a folder; empty if it is unknown.

    A Python runs under itself. A script runs under what its first line names, also through `env`, and through the two
    lines of shell that pip and uv write for a path that is too long or must stay relative.
    """
    view = context.view
    for _ in range(8):
        if not program or not view.is_program(program):
            return ""
        if PYTHON_NAME.fullmatch(posixpath.basename(view.real_path(program))) and not _script_text(view, program):
            return _canonical_name(view, program)
        program = _next_program(context, program, _script_text(view, program))
    return ""


def describe_interpreter(context: ProcessContext, path: str) -> Interpreter:
    """Returns the facts about a Python at a path from find_interpreter().

    Raises TandemError if no standard library is found for it.
    """
    view = context.view
    program = view.real_path(path) or path
    venv = _venv_of(view, path)
    base = _find_prefix(view, program, venv)
    if base is None:
        raise TandemError(
            f"no standard library was found for {path} in the image: no lib/python3.*/site.py lies above {program}",
            hint="use an image whose Python lies in the image itself, not on a volume",
        )
    prefix, lib, minor = base
    standard = _standard_folders(view, prefix, lib, minor)
    if venv:
        folders = [f"{venv}/{name}/{minor}/site-packages" for name in ("lib", "lib64")]
        system = _venv_settings(view, venv).get("include-system-site-packages", "").lower() == "true"
        first, kind, scripts = folders[:1], "venv", f"{venv}/bin"
        folders += [*_user_folders(context, minor), *standard] if system else []
    else:
        first, scripts = standard[:1], "/usr/local/bin" if _is_system(prefix, standard) else f"{prefix}/bin"
        kind = "conda" if view.is_dir(f"{prefix}/conda-meta") else "system"
        folders = [*_user_folders(context, minor), *standard]
    return Interpreter(
        path=path,
        program=program,
        version=_exact_version(view, venv, prefix, program, minor),
        kind=kind,
        site=first[0],
        scripts=scripts,
        paths=tuple(_import_paths(context, folders)),
    )


def find_python3(view: FilesystemView) -> tuple[str, ...]:
    """Returns every path of a `python3` that can be called, on PATH or not."""
    return tuple(path for path in sorted(view.nodes) if path.endswith("/python3") and view.is_program(path))


def _script_text(view: FilesystemView, program: str) -> str:
    content = view.content(program)
    return content.decode("utf-8", "replace") if content.startswith(b"#!") else ""


def _next_program(context: ProcessContext, program: str, text: str) -> str:
    """Returns the program that a script hands over to; empty if it is unknown."""
    first, _, rest = text.partition("\n")
    words = first.removeprefix("#!").split()
    if not words:
        return ""
    if posixpath.basename(words[0]) == "env":
        commands = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        return context.which(commands[0]) if commands else ""
    if posixpath.basename(words[0]) in ("sh", "bash", "dash"):
        match = INNER_EXEC.search(rest)
        return _unquote_path(context.view.real_path(program) or program, match[1]) if match else ""
    return words[0]


def _unquote_path(program: str, words: str) -> str:
    """Returns the path in the shell lines of pip ("/long/path/python") and uv ("$(dirname …)"/'python')."""
    if "dirname" in words:
        return posixpath.join(posixpath.dirname(program), words.rpartition("/")[2].strip("'\""))
    try:
        return shlex.split(words)[0]
    except (ValueError, IndexError):
        return ""


def _canonical_name(view: FilesystemView, path: str) -> str:
    """Returns a Python's path with links inside its own folder followed: python, python3 and python3.12 are one."""
    folder = posixpath.dirname(path)
    for _ in range(8):
        node = view.nodes.get(path)
        if node is None or node.kind != "link":
            break
        target = posixpath.normpath(posixpath.join(folder, node.target))
        if posixpath.dirname(target) != folder:
            break
        path = target
    return path


def _venv_of(view: FilesystemView, path: str) -> str:
    """Returns the venv that a Python belongs to; empty if it is not in one.

    The path by which it is called counts, with links not followed (PEP 405).
    """
    folder = posixpath.dirname(path)
    return next(
        (candidate for candidate in (posixpath.dirname(folder), folder) if view.find(f"{candidate}/pyvenv.cfg")), ""
    )


def _venv_settings(view: FilesystemView, venv: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in view.text(f"{venv}/pyvenv.cfg").splitlines() if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _find_prefix(view: FilesystemView, program: str, venv: str) -> tuple[str, str, str] | None:
    """Returns a Python's prefix, its folder of libraries (lib or lib64) and python3.X; None if they are not found.

    The landmark is site.py of the standard library, as for CPython itself.
    """
    home = _venv_settings(view, venv).get("home", "") if venv else ""
    match = re.fullmatch(r"python(3\.\d+t?)", posixpath.basename(program))
    for start in filter(None, (view.real_path(home) if home else "", posixpath.dirname(program))):
        prefix = start
        while prefix != "/":
            prefix = posixpath.dirname(prefix)
            for lib in ("lib", "lib64"):
                names = [name for name in view.names(f"{prefix}/{lib}") if re.fullmatch(r"python3\.\d+t?", name)]
                minors = [f"python{match[1]}"] if match else sorted(names, key=_minor_number, reverse=True)
                for minor in minors:
                    if minor in names and view.find(f"{prefix.rstrip('/')}/{lib}/{minor}/site.py"):
                        return prefix.rstrip("/") or "/", lib, minor
    return None


def _minor_number(name: str) -> int:
    return int(re.sub(r"\D", "", name.rpartition(".")[2]))


def _standard_folders(view: FilesystemView, prefix: str, lib: str, minor: str) -> list[str]:
    """Returns where a Python outside a venv looks, first the folder that pip installs to.

    Its site.py tells whether a Linux distribution has changed these folders.
    """
    prefix = prefix.rstrip("/")
    site = view.text(f"{prefix}/{lib}/{minor}/site.py")
    if "dist-packages" in site:
        local = prefix if prefix.endswith("/local") else f"{prefix}/local"
        return [f"{local}/lib/{minor}/dist-packages", f"{prefix}/lib/python3/dist-packages"]
    site_packages = [f"{prefix}/{name}/{minor}/site-packages" for name in dict.fromkeys((lib, "lib", "lib64"))]
    if "RPM_BUILD_ROOT" in site and prefix == "/usr":  # Fedora's and Red Hat's
        return [*(f"/usr/local/{name}/{minor}/site-packages" for name in ("lib", "lib64")), *site_packages]
    return site_packages


def _is_system(prefix: str, standard: list[str]) -> bool:
    """Returns whether the Python belongs to the system, so that additions go below /usr/local."""
    return prefix == "/usr" and standard[0].startswith("/usr/local/")


def _user_folders(context: ProcessContext, minor: str) -> list[str]:
    if context.env.get("PYTHONNOUSERSITE"):
        return []
    base = context.env.get("PYTHONUSERBASE") or f"{context.home}/.local"
    return [f"{base}/lib/{minor}/site-packages"]


def _import_paths(context: ProcessContext, sites: list[str]) -> Iterator[str]:
    """Yields the existing folders, in order, each once: PYTHONPATH, site folders, and what their .pth files add."""
    yielded: set[str] = set()
    pythonpath = [path for path in context.env.get("PYTHONPATH", "").split(":") if path.startswith("/")]
    for folder, is_site in [*((path, False) for path in pythonpath), *((path, True) for path in sites)]:
        for path in (folder, *(_pth_entries(context.view, folder) if is_site else ())):
            real = context.view.real_path(path)
            if real and real not in yielded and context.view.find(real):
                yielded.add(real)
                yield posixpath.normpath(path)


def _pth_entries(view: FilesystemView, site: str) -> Iterator[str]:
    """Yields the folders that a site folder's .pth files name. Lines with code are skipped."""
    for name in view.names(site):
        if name.endswith(".pth") and not name.startswith("."):
            for line in view.text(f"{site}/{name}").splitlines():
                if line.strip() and not line.startswith(("#", "import ", "import\t")):
                    yield posixpath.join(site, line.rstrip())


def _exact_version(view: FilesystemView, venv: str, prefix: str, program: str, minor: str) -> str:
    """Returns the most exact version in the files: the C header, the venv, the program or its library."""
    short = minor.removeprefix("python").rstrip("t")
    header = re.search(r'#define\s+PY_VERSION\s+"([^"+]+)', view.text(f"{prefix}/include/{minor}/patchlevel.h"))
    settings = _venv_settings(view, venv) if venv else {}
    binary = [view.content(program), view.content(f"{posixpath.dirname(program)}/{minor}")]
    for lib in ("lib", "lib64"):
        names = [name for name in view.names(f"{prefix}/{lib}") if name.startswith(f"lib{minor}.so")]
        binary += [view.content(f"{prefix}/{lib}/{name}") for name in names]
    versions = [header[1] if header else "", settings.get("version", ""), settings.get("version_info", "")]
    versions += [text.strip(b"\0").decode("ascii", "replace").rstrip("+") for text in binary]
    exact = (re.match(rf"{re.escape(short)}\.\d+(?:(?:a|b|rc)\d+)?", text) for text in versions)
    return next((match[0] for match in exact if match), short)
