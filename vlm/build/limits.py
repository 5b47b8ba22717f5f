"""What an engine holds: what was asked within what the model allows."""

from __future__ import annotations

from vlm.backends.installed import backend, backends
from vlm.config import BuildConfig, EngineLimits, ModelConfig
from vlm.errors import ConfigError, listed
from vlm.registry.role_configs import RoleConfigs


def resolve_limits(build: BuildConfig, configs: RoleConfigs) -> EngineLimits:
    """Resolves `None` to what the model allows. Raises ConfigError for more than that."""
    errors: list[str] = []
    allowed = {
        "max_seq_len": _decoder_tokens(build, configs.decoder, errors),
        "max_encoder_input_len": _encoder_rows(build, configs, errors),
    }
    if not backend(build.backend).encodes(configs.visual):
        able = listed([each.name for each in backends() if each.takes_image_sizes])
        errors.append(f"backend is {build.backend}, but images of several sizes are encoded by {able} alone")
    for name, (_, most) in allowed.items():
        limit = getattr(build, name)
        if limit is not None and most is not None and limit > most:
            errors.append(f"{name} is {limit}, this model allows at most {most}")
    if errors:
        raise ConfigError("; ".join(errors) + ".", settings=(*allowed, "backend"))
    limits = {name: getattr(build, name) or usual for name, (usual, _) in allowed.items()}
    return EngineLimits(build.max_batch_size, **limits)


def _decoder_tokens(build: BuildConfig, decoder: ModelConfig | None, errors: list[str]) -> tuple[int, int | None]:
    """Returns how many tokens a sequence has where nothing is said, and at most; None: any number."""
    if decoder is not None:
        return decoder.max_positions, decoder.position_limit
    if build.max_seq_len is not None:
        errors.append("this model is an encoder alone: max_encoder_input_len is the limit, leave max_seq_len out")
    return 0, None


def _encoder_rows(build: BuildConfig, configs: RoleConfigs, errors: list[str]) -> tuple[int, int | None]:
    """Returns the same of the rows of an encoder besides that of prompts' images."""
    limit = build.max_encoder_input_len
    if (source := configs.encoder) is not None:
        return source.max_positions, source.position_limit
    if configs["decoder"].cross_attention:
        image = configs["visual"]
        if limit is not None and limit < image.min_rows:
            errors.append(f"max_encoder_input_len is {limit}, but one image takes {image.min_rows} rows: give as many")
        return image.max_rows, image.max_rows
    if limit is not None:
        errors.append("this model has no encoder of texts: max_seq_len is the limit, leave max_encoder_input_len out")
    return 0, None
