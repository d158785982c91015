"""What there is to choose from, in words, for help texts.

Kept equal to the tables by a test: pytest registers help texts in every session, and importing
the tables took a third of the plugin's start-up.
"""

MODES = (
    "native (one priority for all streams); stream-priority (urgent streams of a process get a "
    "higher device priority); mps (NVIDIA's Multi-Process Service, all clients alike); "
    "mps-priority (MPS, tenants of priority 0 and below as clients below normal); "
    "mps-partition[:TENANT=80%,...] (MPS, a tenant limited to its share of the multiprocessors); "
    "xsched[:level=1,threshold=16,batch=8,policy=HPF,auto=on] (XSched's global scheduler; a "
    "threshold alone gives a batch of half of it); preload:NAME (any other library, described in "
    "NAME.yaml (--hwq-preloads) or in a file)"
)
NOISES = (
    "none (nothing beside: what the others are compared with); cpu (stress-ng computes Fourier "
    "transforms on all cores); network (iperf3 sends 10 parallel streams through the loopback "
    "interface); disk (fio writes blocks of 4 KiB at random places, 4 jobs with 32 in flight "
    "each); heavy (cpu, network and disk at once); optimised (cpu, with what is measured pinned to "
    "some cores and its priority raised); isolated (optimised, with the neighbours kept off those "
    "cores and their hyperthreads); NAME or a path ending in .yaml (a command that the file "
    "describes); or one that an installed package adds"
)
FAULTS = (
    "slower:PERCENT: everything slower: on a simulated device each kernel, elsewhere a kernel that "
    "spins behind each measured iteration; slower-tail:PERCENT:[SHARE]: SHARE percent of the "
    "measured iterations, chosen by the seed, slower: a kernel that spins behind them; "
    "clock-dip:PERCENT:[START]:[END]: the clock low from START to END percent of the measuring, "
    "seen by telemetry; no real clock is ever touched; aliased-streams: all work goes to the first "
    "stream, whatever is asked; inverted-priority: urgent streams get the low priority; "
    "hidden-inverted-priority: the streams report the right priorities, and urgent work goes to a "
    "stream of low priority; inactive-scheduler: the scheduler mode is asked for and does nothing; "
    "crash:ITERATION: the process dies by a signal at an iteration; hang:ITERATION: the host never "
    "returns from an iteration; out-of-memory:ITERATION: more memory is asked for than there is; "
    "device-error:ITERATION: work on the first stream fails; late-generator:MS: in scenarios, "
    "requests that are due at a time start MS milliseconds late; stalled-tenant:SECONDS: in "
    "scenarios, one request of the first tenant hangs for SECONDS, half-way through"
)
