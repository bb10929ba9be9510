"""Common English words of five to eight letters, from which Domains make their Tasks."""

_TEXT = """
about above academic accept access across action active actual adapt added addition address adult after
again against agree allow almost alone along already although always among amount ancient animal another
answer anyone anything appear applied apply approach areas around article asked aspect assert assess
assign assist attempt author avoid aware based basic basis became because become before began
begin being belief believe below better between beyond birds birth block bodies books bound brain
break bring broad build building built business cannot capital carbon carry cases cause center central
century certain change chapter check chemical child choice choose cities civil claim class clean
clear close coast color comes coming common company complete complex computer concept connect consist
constant contact contain content continue contract costs could count counter country course cover create
created creating critical cross current custom daily damage default demand demon depend design detail
direct directly discover display distance diverse doctor doing during earlier early earth easier
easily eating economy effort efforts either elect electric element elements email employ energy engine
enjoy enough ensure enter entire equal essay event events every exact example except exist expect
express extra factor faith family famous father favor federal feeling field fight figure final first
focus follow force forces forest formed former forward found fresh friend front fruit fully further
future games general getting given gives giving goals going govern graph great greater green group
growing guide habit hands having heard heart helps highly himself history hours house however human
hundred ideas identify image images impact import include included includes increase index
industry inform input inside instance instead instruct interest intern involve issue items itself joint
journal known label labor language large later layer leading learn learned least leave leaves legal
length level light limit limited lines little lived lives living local located location longer looking
lower machine maintain major makes master material matter means measure media medical mental
message method micro middle might miles military minutes model modern moment money month mother mount
movement music named names nation national natural nature nearly needs negative network never night
north nothing novel number numerous object obtain occur offer offers often older online order organ
original other others output outside overall paper parent parts passed pattern peace people
percent perfect perform perhaps period person physical picture piece place places planet plant point
position possible power powerful practice presence present press pressure prevent previous price print
prior problem process produce produced progress project projects promote proper property protect protein
provide provided public purpose quest question quick quite raise random range rates reach react reading
reality really reason reasons receive received recent recently record reduced refer regard region
regions regular related relevant remain remains remember remove report reported request require required
requires research resource respect respond response result results return review right risks rules
sample scale school science search season second section seems select sense series serve service
services setting sever several severe shall shape share shared sharing short should shown shows signs
simple simply since single sites sleep small social solar solid solution sound source sources south
space speak special speed spirit spread stage stand start starting state states status steps still store
stories story strength stress student study style subject success sugar summer super supply support
sustain symbol system table taken takes taking target teach teacher teaching teeth temper terms testing
tests their theory there these thing things think third those though thought threat three through times
today tools topic topics total toward track trade travel treat trees trend trust trying types under
until urban users using usually valid valuable value variety various version video visit vital waste
watch water weather website weeks where whether which while whole whose winter within without woman
women words worked working works world worth would write writing written wrong wrote years young
yourself
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
