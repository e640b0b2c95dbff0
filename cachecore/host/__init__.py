"""The driver and the engine of a machine without an accelerator; discovered like everybody else's plugin."""
