"""The task graph: what decides a result, what was recorded, what the world still holds, and the run."""
