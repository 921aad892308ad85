"""One update of a flat tensor in two variants: the reference, and one for few gradients. They agree in every number."""
