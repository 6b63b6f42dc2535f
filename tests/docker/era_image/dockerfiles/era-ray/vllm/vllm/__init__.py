"""Stands in for vLLM."""

from vllm.entrypoints.openai.cli_args import FlexibleArgumentParser, make_arg_parser


def main() -> None:
    parser = FlexibleArgumentParser(prog="vllm")
    serve = parser.add_subparsers(required=True).add_parser("serve")
    make_arg_parser(serve)
    parser.parse_args()
