"""What computes: a numpy oracle and the CPU engine on ONNX graphs. Strangers to `harken.decoding`."""
