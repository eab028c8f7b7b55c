"""Versions of what this package computes. Every result records those it was computed by.

Raise one when the results of its code change for equal data and parameters, and only then: a raised version computes all
results of all users again, a forgotten one mixes results that do not belong together. tests/training/test_versions.py compares
tiny results with recorded ones and fails if they change while the version does not.
"""

# Fold models: competition/input_pipeline, files/image_codec.py, prepare/targets.py, workspace/features_and_soft_labels.py and
# training, except the modules that PREDICTION stands for.
TRAINING = 1
# The last layer that train.probe fits before the network is trained; recorded by members with it.
PROBE = 6
# Heads on frozen features (competition/training/heads.py); recorded by members with a head.
HEADS = 4
# Features of frozen networks (competition/training/features.py and timm_features.py).
FEATURES = 2
# Predictions by given weights: views, the inference of both engines, the mean for unreadable images.
PREDICTION = 1
