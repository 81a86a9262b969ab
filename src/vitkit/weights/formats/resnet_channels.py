"""The channels of a BiT ResNet, in the fields of our configuration and as the libraries round them."""

from dataclasses import replace

from vitkit.models.config.resnet_config import GROUPS, ResNetConfig, usual_stage_channels


def with_channels(config: ResNetConfig, root: int, stages: tuple[int, ...]) -> ResNetConfig:
    """Give a configuration the channels of a file: by `width_factor` alone where it suffices.

    Raises:
        VitkitError: GroupNorm cannot divide them into its groups.
    """
    if stages == usual_stage_channels(config.layers, root / 64):
        return replace(config, width_factor=root / 64, root_width=None, stage_widths=None)
    return replace(config, width_factor=1.0, root_width=root, stage_widths=stages)


def has_usual_channels(config: ResNetConfig) -> bool:
    """Whether the channels of all stages follow from the root's, as in every BiT that was released."""
    return config.stage_channels == usual_stage_channels(config.layers, config.root_channels / 64)


def absent_from_release(config: ResNetConfig) -> list[str]:
    """Name the parts of a configuration that BiT's own code cannot build."""
    phrases = [] if config.mixing == "convolution" else [f"{config.mixing} attention in a ResNet"]
    if config.groups != GROUPS:
        phrases.append(f"groups {config.groups} (only {GROUPS})")
    if not has_usual_channels(config):
        phrases.append(f"root_width {config.root_channels} with stage_widths {config.stage_channels}")
    return phrases


def absent_from_libraries(config: ResNetConfig) -> list[str]:
    """Name the channels that neither timm nor transformers can build.

    Both round the channels of a bottleneck to a multiple of 8, and both have a projection in the first unit
    of every stage, which a ResNet here has only where the sizes change.
    """
    phrases = []
    if any(width % 32 for width in config.stage_channels) or config.root_channels % 8:
        phrases.append(
            f"a root of {config.root_channels} channels and stages of {config.stage_channels} (only "
            "multiples of 8 and of 32)"
        )
    if config.root_channels == config.stage_channels[0]:
        phrases.append(f"a first stage of as many channels as the root, {config.root_channels}")
    return phrases
