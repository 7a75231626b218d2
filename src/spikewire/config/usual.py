"""The network and the preset that a run gets which names only its data set or its model."""

MODEL_OF = {
    "digits": "digits-mlp",
    "mnist": "mnist-mlp",
    "fashion-mnist": "mnist-mlp",
    "cifar10": "cifar10-conv",
    "cifar100": "sew-resnet18",
    "braille": "recurrent",
    "seqdigits": "lsnn-short",
    "seqmnist": "lsnn",
    "nmnist": "mlp",
    "dvs-gesture": "mlp",
    "cifar10-dvs": "mlp",
    "shd": "recurrent",
    "ssc": "recurrent",
    "st-mnist": "mlp",
}
PRESET_OF = {
    "digits": "digits",
    "mnist": "mnist-fast",
    "fashion-mnist": "mnist-fast",
    "cifar10": "cifar10-fast",
    "braille": "braille",
    "seqdigits": "seqdigits-lsnn",
    "seqmnist": "seqmnist-lsnn",
}
PRESET_OF_RULE = {
    "diehl-cook": "mnist-diehl",
    "wta": "mnist-wta",
    "rbm": "mnist-rbm",
    "ecd": "mnist-ecd",
    "tempotron": "mnist-tempotron",
}
