"""What there is to choose from, in words, for help texts.

Kept equal to the tables by a test: pytest registers help texts in every session, and importing
the tables took a third of the plugin's start-up.
"""

MODES = (
    "native (one priority for all streams); stream-priority (urgent streams of a process get a "
    "higher device priority); mps (NVIDIA's Multi-Process Service, all clients alike); "
    "mps-priority (MPS; tenants of priority 0 and below are clients below normal); "
    "mps-partition[:TENANT=80%,...] (MPS; each tenant is limited to its share of the "
    "multiprocessors); xsched[:level=1,threshold=16,batch=8,policy=HPF,auto=on] (XSched's global "
    "scheduler; batch defaults to half of a given threshold); preload:NAME (any other library, "
    "described in NAME.yaml (--hwq-preloads) or in a file)"
)
NOISES = (
    "none (no load: the reference for the others); cpu (stress-ng computes Fourier transforms on "
    "all cores); network (iperf3 sends 10 parallel streams through the loopback interface); disk "
    "(fio writes blocks of 4 KiB at random places, 4 jobs with 32 in flight each); heavy (cpu, "
    "network and disk at once); optimised (cpu, with the measured process pinned to some cores "
    "and its priority raised); isolated (optimised, with the neighbours kept off those cores and "
    "their hyperthreads); NAME or a path ending in .yaml (a command that the file describes); or "
    "one that an installed package adds"
)
FAULTS = (
    "slower:PERCENT: makes everything slower: each kernel on a simulated device, elsewhere each "
    "launch, by a kernel that spins for PERCENT of its time; a tenant's requests as a whole; "
    "slower-tail:PERCENT:[SHARE]: makes SHARE percent of the measured iterations, chosen by the "
    "seed, slower, by a kernel that spins after them; clock-dip:PERCENT:[START]:[END]: makes "
    "kernels slower by PERCENT from START to END percent of the measurement, by a lower clock "
    "that telemetry sees; no real clock is touched; aliased-streams: sends all work to the first "
    "stream, whatever is requested; "
    "inverted-priority: gives urgent streams the low priority; hidden-inverted-priority: sends "
    "urgent work to a low-priority stream while streams report the right priorities; "
    "inactive-scheduler: makes the requested scheduler mode do nothing; crash:ITERATION: kills "
    "the process with a signal at an iteration; hang:ITERATION: makes the host hang in an "
    "iteration; out-of-memory:ITERATION: asks for more memory than there is; "
    "device-error:ITERATION: makes work on the first stream fail; late-generator:MS: in "
    "scenarios, starts scheduled requests MS milliseconds late; stalled-tenant:SECONDS: in "
    "scenarios, stalls one request of the first tenant for SECONDS, half-way through"
)
