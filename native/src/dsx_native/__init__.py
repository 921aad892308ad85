"""C++ kernels for dsx, built once into a wheel that links no PyTorch library."""
