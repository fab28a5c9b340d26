"""Options that every Go component of Karmada has.

Manifests written for the Go binaries must start ours unchanged, so flags that have no effect here are
accepted, and their help says so.
"""

from typing import Annotated, Literal

from karpool.manager.options import Count, Options, option

_PROFILING = "Profiling of the Go binary."
_IgnoredSwitch = Annotated[bool, option(ignored=True)]
_IgnoredText = Annotated[str, option(ignored=True)]


class GoLogOptions(Options, frozen=True):
    enable_pprof: Annotated[bool, option(_PROFILING, ignored=True)] = False
    profiling_bind_address: Annotated[str, option(_PROFILING, ignored=True)] = ":6060"
    add_dir_header: _IgnoredSwitch = False
    alsologtostderr: _IgnoredSwitch = False
    alsologtostderrthreshold: _IgnoredText = ""
    legacy_stderr_threshold_behavior: _IgnoredSwitch = True
    log_backtrace_at: _IgnoredText = ":0"
    log_dir: _IgnoredText = ""
    log_file: _IgnoredText = ""
    log_file_max_size: Annotated[Count, option(ignored=True)] = 1800
    log_flush_frequency: _IgnoredText = "5s"
    log_text_info_buffer_size: _IgnoredText = "0"
    log_text_split_stream: _IgnoredSwitch = False
    logging_format: Annotated[Literal["text", "json"], option("Format of log lines.")] = "text"
    logtostderr: _IgnoredSwitch = True
    one_output: _IgnoredSwitch = False
    skip_headers: _IgnoredSwitch = False
    skip_log_headers: _IgnoredSwitch = False
    stderrthreshold: _IgnoredText = "2"
    v: Annotated[int, option("Log level, 0 to 5.", short="v")] = 0
    vmodule: _IgnoredText = ""
