"""Where a model's time goes, layer by layer, and what its ranks say to each other. Only `model`, `timing` and parts of
`comm` import torch, and only when they are used; everything that reads a profile needs numpy at most.
"""
