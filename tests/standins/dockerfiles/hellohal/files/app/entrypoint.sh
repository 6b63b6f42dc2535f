#!/bin/bash
# Serves one model, chosen by the environment. Whatever command the container was given is not looked at.
set -e

args=(--model "${MODEL_PATH:-/models/default}" --served-model-name "${SERVED_MODEL_NAME:-default}")
args+=(--host "${HOST:-0.0.0.0}" --port "${PORT:-8000}")
[ -z "$MAX_MODEL_LEN" ] || args+=(--max-model-len "$MAX_MODEL_LEN")
[ -z "$GPU_MEMORY_UTIL" ] || args+=(--gpu-memory-utilization "$GPU_MEMORY_UTIL")

echo "entrypoint: ${args[*]}"
exec python3 -m vllm.entrypoints.openai.api_server "${args[@]}"
