package browsertest

import (
	"image"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"slices"
)

// Pictures are compared by the mean colours of squares. Machines have other fonts and draw letters
// in other ways, so a square with text or with a picture in it may be far off: text is to be
// compared as text. What a page draws without letters, grounds, lines and curves, must be the same.
const (
	square = 8
	// mostDrawn is how far a square without text may be off, of 255, and mostMean all of them on
	// average.
	mostDrawn, mostMean = 12, 6.0
)

// letters are the lines that have letters, as wide as what they stand in, and the pictures.
const letters = `(() => {
	const all = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	const add = (b, r) => all.push({Min: {X: Math.floor(b.left), Y: Math.floor(r.top)}, Max: {X: Math.ceil(b.right), Y: Math.ceil(r.bottom)}});
	while (walk.nextNode()) {
		if (!walk.currentNode.data.trim()) continue;
		let e = walk.currentNode.parentElement;
		while (getComputedStyle(e).display === "inline") e = e.parentElement;
		const range = document.createRange();
		range.selectNode(walk.currentNode);
		const box = e.getBoundingClientRect(), label = getComputedStyle(e, "::before");
		add(box, label.content !== "none" && label.display !== "none" ? box : range.getBoundingClientRect());
	}
	for (const e of document.images) add(e.getBoundingClientRect(), e.getBoundingClientRect());
	return all;
})()`

// A Screen is what a window shows, and where that depends on fonts.
type Screen struct {
	image.Image
	letters []image.Rectangle
}

// Screen returns what the window shows.
func (tab *Tab) Screen() Screen {
	tab.t.Helper()
	s := Screen{Image: tab.picture()}
	tab.Eval(letters, &s.letters)
	return s
}

// LooksLike wants the window to show what a file does. It writes the file instead if draw is set;
// how says how to do that.
func (tab *Tab) LooksLike(path string, draw bool, how string) {
	tab.t.Helper()
	got := tab.Screen()
	if draw {
		tab.write(path, got)
		return
	}
	file, err := os.Open(path)
	if err != nil {
		tab.t.Fatal(err)
	}
	defer file.Close()
	want, err := png.Decode(file)
	if err != nil {
		tab.t.Fatal(err)
	}
	if got.Bounds() != want.Bounds() {
		tab.t.Fatalf("the window is %v, and %s is %v", got.Bounds(), path, want.Bounds())
	}
	if d := Compare(got, want); !d.IsSmall() {
		now := filepath.Join(tab.t.ArtifactDir(), filepath.Base(path))
		tab.write(now, got)
		tab.t.Errorf("the page is not as in %s, but as in %s: %+v.\nIf that is right, %s draws it.", path, now, d, how)
	}
}

func (tab *Tab) write(path string, s Screen) {
	tab.t.Helper()
	file, err := os.Create(path)
	if err == nil {
		err = png.Encode(file, s.Image)
	}
	if err == nil {
		err = file.Close()
	}
	if err != nil {
		tab.t.Fatal(err)
	}
}

// A Difference is how far the squares of two pictures are off on average, and the most of those
// without text.
type Difference struct {
	Mean, Drawn float64
	At          image.Point
}

// IsSmall reports whether fonts can make such a difference.
func (d Difference) IsSmall() bool { return d.Mean <= mostMean && d.Drawn <= mostDrawn }

// Compare compares two pictures of one size.
func Compare(got Screen, want image.Image) (d Difference) {
	n := 0.0
	for y := 0; y < got.Bounds().Dy(); y += square {
		for x := 0; x < got.Bounds().Dx(); x += square {
			a, b := meanOf(got, x, y), meanOf(want, x, y)
			off := max(math.Abs(a[0]-b[0]), math.Abs(a[1]-b[1]), math.Abs(a[2]-b[2]))
			d.Mean, n = d.Mean+off, n+1
			if off > d.Drawn && !slices.ContainsFunc(got.letters, image.Rect(x, y, x+square, y+square).Overlaps) {
				d.Drawn, d.At = off, image.Pt(x, y)
			}
		}
	}
	d.Mean /= n
	return d
}

// meanOf is the mean colour of a square.
func meanOf(p image.Image, x, y int) (mean [3]float64) {
	r := image.Rect(x, y, x+square, y+square).Intersect(p.Bounds())
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			r, g, b, _ := p.At(x, y).RGBA()
			mean[0], mean[1], mean[2] = mean[0]+float64(r>>8), mean[1]+float64(g>>8), mean[2]+float64(b>>8)
		}
	}
	for i := range mean {
		mean[i] /= float64(r.Dx() * r.Dy())
	}
	return mean
}
