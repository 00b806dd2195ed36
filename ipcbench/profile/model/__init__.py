"""The models that are profiled and how they are divided among ranks.

- `plan`: which rank computes what, and the facts of a model by name; without torch
- `decoder`: a decoder shaped like Llama or Qwen3, with weights that follow from a seed
- `loading`: a setting's model: a preset, a config.json, a folder of transformers, or anyone's own
- `parallel`: one rank's part of it, with the tensors that it exchanges with the others
- `split`: a client that keeps the tensors and a server that multiplies
- `wire`: what is sent between ranks
"""
