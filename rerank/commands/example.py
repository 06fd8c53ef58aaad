"""The example of `rerank rank --example` and of the inspector's empty page."""

EXAMPLE_QUERY = "how long does a flea live"
#: Every second one answers. Each answer shares one word with the query or none, and two of the others share more.
EXAMPLE_PASSAGES = (
    "How long can people live on a small boat?",
    "An adult flea survives a hundred days.",
    "The flea market is open all day long.",
    "Most fleas die within three months.",
    "Deserts are dry, and their nights are cold.",
    "Some say that a flea's life lasts a year.",
)
