"""What runs kernels: accelerators (CUDA and ROCm) and the host's own cores."""
