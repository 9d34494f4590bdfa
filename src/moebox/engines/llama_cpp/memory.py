"""llama.cpp's memory: the rules both servers share, and over several nodes its own."""

from moebox.core.deployment import Deployment
from moebox.core.plan import Memory
from moebox.engines.ggml import memory as ggml
from moebox.engines.llama_cpp import spread


def memory_budget(deployment: Deployment) -> Memory:
    """Every device's bytes, and the tokens the cache holds."""
    return (
        spread.multi_node_budget(deployment)
        if spread.spans_nodes(deployment.recipe)
        else ggml.memory_budget(deployment)
    )
