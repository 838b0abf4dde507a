"""What encoders do with every clip, whatever it shows: the publication's studies of its signals."""
