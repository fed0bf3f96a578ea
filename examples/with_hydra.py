"""Hydra: its configuration, its overrides and its folders around a study.

python examples/with_hydra.py run.lr=0.1
python examples/with_hydra.py --multirun run.lr=0.01,0.1
"""

from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from equipoise.data.source import data_set
from equipoise.study.compare import compare
from equipoise.study.registry import entries


@hydra.main(version_base=None, config_path=".", config_name="with_hydra")
def main(config: DictConfig) -> None:
    words = [f"run.{name}={value}" for name, value in config.run.items()]
    words += [f"{method}.{name}={value}" for method, own in config.params.items() for name, value in own.items()]
    folder = Path(HydraConfig.get().runtime.output_dir)
    rows = compare(
        entries(config.methods, words), data_set(config.data), range(config.seeds), folder, quick=True, quiet=True
    )
    for row in rows:
        print(f"{row['method']}, seed {row['seed']}: {100 * row['test']['fused']:.1f} %")


if __name__ == "__main__":
    main()
