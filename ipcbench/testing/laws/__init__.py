"""The laws of the contract as checks, one function a law."""
