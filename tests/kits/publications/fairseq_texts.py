"""BPE codes and a dictionary as FairSeq's published models have them, and texts as FairSeq splits them.

Recorded with sacremoses 0.2.0 (aggressive dashes, escapes) and subword-nmt 0.3.8, on a few sentences of English and
French: 110 merges, minimum frequency 2.
"""

MERGES = """\
o~s e~s</w> a~p ap~os &~apos t~r tr~a h~e</w> o~r l~l i~n w~or t~he</w> p~a o~u e~s &apos~; u~o uo~t uot~;</w>
q~uot;</w> o~n in~es</w> h~ines</w> e~n c~hines</w> a~chines</w> @~- @-~@</w> &apos~;</w> &~quot;</w> tra~n tran~s
trans~l transl~a transla~t tra~d trad~u t~s</w> pa~s</w> os~t</w> o~w o~n</w> m~achines</w> l~u l~e</w> j~ou i~ll
es~t</w> en~t</w> e~u e~ll c~ost</w> 5~0</w> &apos;~t</w> wor~l worl~d</w> wor~k</w> v~a va~ill tradu~c traduc~t
traduct~eu tra~vaill t~i t~h</w> t~h th~e the~y</w> p~lu plu~s</w> on~d o~r</w> n~ow n~e</w> n~e ne~w m~i mi~th</w>
l~l</w> l~es</w> k~now jou~r i~d</w> e~ts</w> d~on</w> d~&apos;</w> a~u a~t</w> T~he</w> S~mith</w> L~es</w>
&apos;~s</w>"""
CODES = "#version: 0.2\n" + MERGES.replace("\n", " ").replace(" ", "\n").replace("~", " ") + "\n"
ENTRIES = """\
. , a@@ s e e@@ n d@@ o@@ s@@ r@@ .@@ t the c@@ n@@ @-@ M@@ &quot; b@@ p@@ r i@@ ell@@ translat@@ &apos;t ; u@@ 3@@
50 l@@ cost m@@ est ? machines h@@ le pas ent o world ! The w@@ ll know@@ or es@@ work ond@@ y@@ id don they Smith
pa@@ $ ou@@ ti@@ k@@ ets a new@@ at &apos;s in@@ on@@ traducteu@@ u ne travaill@@ i « Les » es les &apos; jour@@
au@@ d&apos; plus H@@ on achines he g@@ ( 3 eu@@ ) f@@ w &@@ ap@@ or@@ ow@@ I@@ 5 : 0 U@@ S@@ d wor@@ g W@@ % f B@@
jou@@ L@@ lu@@ tradu@@ v@@ é ,@@ ill@@ x é@@ en@@ ts û@@""".split()
# a text -> the pieces that FairSeq's hub interface looks up
EXAMPLES = {
    "Hello, world!": "H@@ ell@@ o , world !",
    "The machines' cost isn't low-cost: \"don't\" & they...": (
        "The machines &apos; cost i@@ s@@ n &apos;t l@@ o@@ w @-@ cost : &quot; don &apos;t &quot; &@@ a@@ m@@ p@@ "
        "; they .@@ .@@ ."
    ),
    "Mr. Smith works at 5:30 p.m. in the U.S.": (
        "M@@ r@@ . Smith wor@@ k@@ s at 5 : 3@@ 0 p@@ .@@ m@@ . i@@ n the U@@ .@@ S@@ ."
    ),
    "they  know\twhat $3.50 (or 50%) do; <b>": (
        "they k@@ n@@ o@@ w w@@ h@@ at $ 3@@ .@@ 50 ( or 50 % ) d@@ o ; &@@ l@@ t@@ ; b &@@ g@@ t@@ ;"
    ),
    "w1, 日本": "w@@ 1 , 日 本",
    "It's [sic] a|b": "I@@ t &apos;s &@@ #@@ 9@@ 1@@ ; s@@ i@@ c &@@ #@@ 9@@ 3@@ ; a &@@ #@@ 1@@ 2@@ 4@@ ; b",
}
