package statuspage_test

import (
	"image/color"
	"image/png"
	"os"
	"testing"
)

// checkPicture wants a picture with text on a light ground.
func checkPicture(t *testing.T, path string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	picture, err := png.Decode(file)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[uint8]int{} // by sixteenths of brightness
	for y := range picture.Bounds().Dy() {
		for x := range picture.Bounds().Dx() {
			counts[color.GrayModel.Convert(picture.At(x, y)).(color.Gray).Y/16]++
		}
	}
	all := picture.Bounds().Dx() * picture.Bounds().Dy()
	if n := counts[15]; n < all/2 || n == all || len(counts) < 5 {
		t.Errorf("%s: %d of %d pixels are ground, in %d shades", path, n, all, len(counts))
	}
}
