"""The launcher layer on a real image whose entrypoint ignores its command and whose vLLM is editable."""

import io
import tarfile
from dataclasses import dataclass

import pytest
from docker import DockerClient

from pipeline.config.launcher_contract import MODS_PACKAGES
from pipeline.core.log import NullLog
from pipeline.foreign.facts import ImageFacts, InstalledDistribution, Interpreter
from pipeline.foreign.launcher_layer import SERVE_COMMAND, LauncherLayer, plan_layer
from pipeline.smoke import launcher
from pipeline.smoke.containers import ContainerFactory
from pipeline.smoke.entrypoint import try_entrypoint
from tests.docker import era_image

REPOSITORY = "tandem-test-launching"
SITE = "/usr/local/lib/python3.13/dist-packages"
ENTRY = '#!/bin/bash\necho "serving $* in $PWD"\n'
WORKDIR = "/workspace/vllm"


@dataclass
class Combined:
    """The foreign image, the layer, and the image with it."""

    foreign: str
    layer: LauncherLayer
    image: str


def read(digest: str) -> ImageFacts:
    return ImageFacts(
        digest=digest,
        platform="linux/amd64",
        entrypoint=("/app/entry.sh",),
        cmd=("--model", "its own"),
        user="",
        workdir="/app",
        env={"PATH": "/usr/bin:/bin"},
        glibc=41,
        python=Interpreter(
            path="/usr/bin/python3", program="/usr/bin/python3.13", version="3.13.5", kind="system", site=SITE,
            scripts="/usr/local/bin", paths=(SITE,),
        ),
        distributions=(InstalledDistribution(name="vllm", version="0.17.1", place=SITE, editable="/opt/vllm"),),
        entrypoint_text=ENTRY,
    )  # fmt: skip


def tar(layer: LauncherLayer) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as file:
        for folder in layer.folders:
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            file.addfile(entry)
        for path, (content, mode) in layer.files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), mode
            file.addfile(entry, io.BytesIO(content))
        for path, target in layer.links.items():
            entry = tarfile.TarInfo(path)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            file.addfile(entry)
    return raw.getvalue()


@pytest.fixture(scope="module")
def combined(client: DockerClient) -> Combined:
    def commit(container_of: str, command: str, files: bytes, changes: list[str], tag: str) -> str:
        container = client.containers.create(container_of, ["bash", "-c", command], entrypoint=[""])
        try:
            container.put_archive("/", files)
            container.start()
            assert container.wait()["StatusCode"] == 0
            client.api.commit(str(container.id), REPOSITORY, tag, changes=changes)
        finally:
            container.remove(force=True, v=True)
        return str(client.images.get(f"{REPOSITORY}:{tag}").id)

    entry = io.BytesIO()
    with tarfile.open(fileobj=entry, mode="w") as file:
        member = tarfile.TarInfo("app/entry.sh")
        member.size, member.mode = len(ENTRY), 0o755
        file.addfile(member, io.BytesIO(ENTRY.encode()))
    moved = "rm -r /workspace /usr/local/lib/python3.12 && mkdir /opt/vllm"
    moved += f" && mv {SITE}/vllm /opt/vllm/ && echo /opt/vllm > {SITE}/vllm.pth"
    changes = ['ENTRYPOINT ["/app/entry.sh"]', 'CMD ["--model", "its own"]', "WORKDIR /app", "ENV PATH=/usr/bin:/bin"]
    foreign = commit(era_image.made(NullLog()), moved, entry.getvalue(), changes, "foreign")
    made = plan_layer(read(foreign), WORKDIR)
    return Combined(foreign, made, commit(foreign, "true", tar(made), made.settings(), "combined"))


def said(client: DockerClient, image: str, *command: str) -> str:
    return bytes(client.containers.run(image, list(command) or None, remove=True)).decode()


def test_the_foreign_image_ignores_its_command_and_the_combined_one_does_not(
    client: DockerClient, combined: Combined
) -> None:
    for image, faults in ((combined.foreign, 1), (combined.image, 0)):
        factory = ContainerFactory(client, image, "linux/amd64", emulated=False)
        assert len(try_entrypoint(factory, NullLog()).value) == faults
        assert list(launcher._description_faults(factory.description(), "linux/amd64")) == []


def test_tandem_serve_does_what_the_foreign_image_did_by_default(client: DockerClient, combined: Combined) -> None:
    served = "serving --model its own in /app\n"
    assert said(client, combined.foreign) == served
    assert said(client, combined.image) == served
    assert said(client, combined.image, SERVE_COMMAND) == served
    assert said(client, combined.image, SERVE_COMMAND, "--port", "1") == "serving --port 1 in /app\n"


def test_a_plain_bash_finds_ray_the_script_and_the_vllm_that_python_imports(
    client: DockerClient, combined: Combined
) -> None:
    commands = (
        "pwd; command -v ray; head -n1 ./run-cluster-node.sh; test -x run-cluster-node.sh && echo runs; echo $HOME;"
        f"touch /workspace/x x && echo written; readlink -e {MODS_PACKAGES}/vllm;"
        ' python3 -c "import vllm; print(vllm.__path__[0])"'
    )
    assert said(client, combined.image, "bash", "-c", commands).splitlines() == [
        WORKDIR, "/usr/local/bin/ray", "#!/bin/bash", "runs", "/root", "written", "/opt/vllm/vllm", "/opt/vllm/vllm",
    ]  # fmt: skip
