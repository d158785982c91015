"""The devices that run kernels: accelerators (CUDA and ROCm), the host, simulated ones."""
