"""What an engine holds: what was asked within what the model allows."""

from __future__ import annotations

from vlm.backends.installed import backend, backends
from vlm.config import BuildConfig, EngineLimits
from vlm.errors import ConfigError, listed
from vlm.registry.role_configs import RoleConfigs


def resolve_limits(build: BuildConfig, configs: RoleConfigs) -> EngineLimits:
    """Resolves `None` to what the model allows. Raises ConfigError for more than that."""
    defaults, maxima, errors = {"max_seq_len": 0, "max_encoder_input_len": 0}, {}, []
    vision, source, decoder = configs.visual, configs.encoder, configs.decoder
    if decoder is not None:
        defaults["max_seq_len"], maxima["max_seq_len"] = decoder.max_positions, decoder.position_limit
    elif build.max_seq_len is not None:
        errors.append("this model is an encoder alone: max_encoder_input_len is the limit, leave max_seq_len out")
    if source is not None:
        defaults["max_encoder_input_len"] = source.max_positions
        maxima["max_encoder_input_len"] = source.position_limit
    elif configs["decoder"].cross_attention:
        limit, image = build.max_encoder_input_len, configs["visual"]
        defaults["max_encoder_input_len"] = maxima["max_encoder_input_len"] = image.max_rows
        if limit is not None and limit < image.min_rows:
            errors.append(f"max_encoder_input_len is {limit}, but one image takes {image.min_rows} rows: give as many")
    elif build.max_encoder_input_len is not None:
        errors.append("this model has no encoder of texts: max_seq_len is the limit, leave max_encoder_input_len out")
    if not backend(build.backend).encodes(vision):
        able = listed([each.name for each in backends() if each.takes_image_sizes])
        errors.append(f"backend is {build.backend}, but images of several sizes are encoded by {able} alone")
    for name, most in maxima.items():
        limit = getattr(build, name)
        if limit is not None and most is not None and limit > most:
            errors.append(f"{name} is {limit}, this model allows at most {most}")
    if errors:
        raise ConfigError("; ".join(errors) + ".", settings=(*defaults, "backend"))
    values = {name: getattr(build, name) for name in defaults}
    return EngineLimits(build.max_batch_size, **{n: values[n] or default for n, default in defaults.items()})
