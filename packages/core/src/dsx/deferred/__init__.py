"""Models as descriptions: recorded while they are built, made real where they rest."""
