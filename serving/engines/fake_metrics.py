"""What the fake vLLM writes under ``/metrics``: names and labels of vLLM 0.32.0."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Counted:
    """The numbers of a fake engine, now or so far."""

    model: str
    running: int
    waiting: int
    kv_use: float
    prefix_queries: int
    prefix_hits: int
    output_tokens: int
    speculated_tokens: int | None
    """Tokens sampled under speculation; None: started without it."""


def metrics_text(counted: Counted) -> str:
    """The text format of Prometheus; four tokens are drafted and three accepted per four speculated tokens."""
    labels = f'{{engine="0",model_name="{counted.model}"}}'
    lines: list[str] = []

    def add(name: str, kind: str, value: float) -> None:
        lines.extend([f"# TYPE vllm:{name} {kind}", f"vllm:{name}{labels} {float(value)}"])

    add("num_requests_running", "gauge", counted.running)
    add("num_requests_waiting", "gauge", counted.waiting)
    add("kv_cache_usage_perc", "gauge", counted.kv_use)
    add("prefix_cache_queries_total", "counter", counted.prefix_queries)
    add("prefix_cache_hits_total", "counter", counted.prefix_hits)
    add("generation_tokens_total", "counter", counted.output_tokens)
    if counted.speculated_tokens is not None:
        drafts = counted.speculated_tokens // 4
        add("spec_decode_num_drafts_total", "counter", drafts)
        add("spec_decode_num_draft_tokens_total", "counter", 4 * drafts)
        add("spec_decode_num_accepted_tokens_total", "counter", 3 * drafts)
        metric = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        lines.append(f"# TYPE {metric} counter")
        for position, share in enumerate((1, 1, 1, 0)):
            lines.append(f'{metric}{labels[:-1]},position="{position}"}} {float(share * drafts)}')
    return "\n".join(lines) + "\n"
