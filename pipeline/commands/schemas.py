"""`./doitw schemas`: the JSON Schemas of image.yaml and pipeline.yaml, for editors and for CI."""

from pathlib import Path
from typing import Any, ClassVar

from pipeline.commands.base import GraphCommand, Options, refuse_words
from pipeline.core.errors import Exit, TandemError

ROOT = Path(__file__).parents[2]


class SchemasCommand(GraphCommand):
    """doit's plugin command `schemas`."""

    name = "schemas"
    doc_purpose = "write the JSON Schemas of image.yaml and pipeline.yaml to schemas/"
    doc_usage = "[--check]"
    doc_description = (
        "They follow from pipeline/config/models.py. With --check nothing is written: exit status 1 if one is old."
    )
    cmd_options: ClassVar[tuple[dict[str, Any], ...]] = (
        {"name": "check", "long": "check", "type": bool, "default": False, "help": "only say whether they are current"},
    )

    def execute(self, opt_values: Options, pos_args: list[str]) -> int:
        """Write those that differ, or fail naming them."""
        from pipeline.config.loader import json_schemas
        from pipeline.core.files import write_whole

        refuse_words(pos_args, "schemas")
        texts = {ROOT / "schemas" / name: text for name, text in json_schemas().items()}
        outdated = [
            path for path, text in texts.items() if not path.exists() or path.read_text(encoding="utf-8") != text
        ]
        names = ", ".join(f"schemas/{path.name}" for path in outdated)
        if outdated and opt_values["check"]:
            raise TandemError(f"not current: {names}", hint="run ./doitw schemas, and commit what it writes")
        for path in outdated:
            write_whole(path, texts[path])
        print(f"written: {names}" if outdated else "the schemas are current")
        return Exit.OK
