"""What the toy is."""

from moebox.core.traits import Traits

TRAITS = Traits(
    name="toy",
    title="Toy",
    rank=900,
    formats=("safetensors",),
    shards=frozenset({"tp"}),
    kv=("auto", "bf16"),
    key_env="TOY_API_KEY",
    ports=(7,),
    image="toys/engine:{version}",
    image_entry=("toy-serve",),
    image_has_entrypoint=True,
    package="toy-engine",
    program=("toy-serve",),
    install="pip install toy-engine",
)
