"""Sound, images and video: files in, arrays out; spectrograms on any device."""
