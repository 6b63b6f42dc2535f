"""Parts a service's secrets from what everybody may see of it.

The command line and the environment of a container are shown by `docker inspect`, and a command line by `ps`. So the
secrets reach a node in a file that only root can read: serve_node.py puts them into vLLM's environment, and words of
its command line in place of the marks that stand for them here.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from pipeline.cluster.service_api import split_api_keys
from pipeline.config.models import Serve
from pipeline.core import redact, sensitive

API_KEY_VARIABLE = "VLLM_API_KEY"
"""vLLM 0.19 takes its API key from this variable if no --api-key is given. It holds one key only."""


@dataclass(frozen=True, kw_only=True)
class ServiceSecrets:
    """The secrets of a service. Their values are in no text that is made of this."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables of vLLM's environment, and of Ray's."""
    words: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Parts of vLLM's command line, by the mark that stands in their place."""

    @property
    def content(self) -> bytes:
        """The content of the file that serve_node.py reads."""
        return json.dumps({"env": dict(self.env), "words": dict(self.words)}, sort_keys=True).encode()

    @property
    def names(self) -> list[str]:
        """The names and marks of the secrets; none if there are no secrets."""
        return sorted([*self.env, *self.words])


def part_secrets(serve: Serve) -> tuple[Serve, ServiceSecrets]:
    """Returns the service without its secrets, and these."""
    serve = _with_key_in_environment(serve)
    env = {name: value for name, value in serve.env.items() if _is_secret(name, value)}
    words: dict[str, str] = {}

    tags = (f"@secret{number or ''}-" for number in itertools.count())
    tag = next(tag for tag in tags if not any(tag in word for word in serve.args))

    def mark(_option: str, value: str) -> str:
        name = f"{tag}{len(words)}@"
        words[name] = value
        return name

    args = tuple(sensitive.map_secret_options(serve.args, mark))
    redact.register_in(env)
    redact.register_in(list(serve.args))
    public = {name: value for name, value in serve.env.items() if name not in env}
    return replace(serve, env=public, args=args), ServiceSecrets(env=env, words=words)


def _with_key_in_environment(serve: Serve) -> Serve:
    """Returns the service with its API key in the variable. Several keys stay where they are."""
    others, keys = split_api_keys(serve.args)
    if keys is None or len(keys) > 1:
        return serve
    env = {**serve.env, API_KEY_VARIABLE: keys[0]} if keys else serve.env
    return replace(serve, args=tuple(others), env=env)


def _is_secret(name: str, value: str) -> bool:
    return sensitive.name_says_secret(name) or sensitive.holds_secret(value)
