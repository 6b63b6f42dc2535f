"""image.yaml and pipeline.yaml: their shapes, reading and rules, and the contract with launchers."""
