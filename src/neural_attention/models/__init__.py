"""Small transformers models with :class:`neural_attention.NeuralAttention` in their layers."""
